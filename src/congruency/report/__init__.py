"""Tables, charts and self-contained HTML pages."""
