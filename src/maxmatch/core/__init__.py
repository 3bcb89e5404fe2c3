"""What every other part uses: types, checks, files, devices, progress."""
