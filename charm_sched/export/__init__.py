"""Files for other programs: a report as one HTML page, execution traces."""
