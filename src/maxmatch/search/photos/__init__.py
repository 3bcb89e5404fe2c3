"""Folders of photos: their indexes, what is noted of each photo, file names, albums, several folders as one."""
