"""Public failures of inference servers, tried on this one: a file an area; the index is `docs/field_reports.md`."""
