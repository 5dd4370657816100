"""How a question gets in: a job file, a trainer's own file or the one-line form -> one `Job`."""
