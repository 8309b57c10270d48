"""Tables, figures and the page that shows a set of runs."""
