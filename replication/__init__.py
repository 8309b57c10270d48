"""What judges the paper: its claims, the results that decide them, and the page that says what they say."""
