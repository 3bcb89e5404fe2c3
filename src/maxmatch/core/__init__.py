"""What everything stands on: types, checks, files, devices."""
