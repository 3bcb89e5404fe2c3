"""Photo search for people: a JSON API over an index, and the page that uses it."""
