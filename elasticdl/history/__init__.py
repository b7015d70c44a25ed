"""A job's recorded history, the source of the page, `elasticdl why` and report.html."""
