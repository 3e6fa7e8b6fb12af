"""What a node does for claims: decide under one lock, put on record, carry out.

Why a claim is on record in four places, and which module keeps each:

- `ledger` is the record: one row for each claim in SQLite, flushed to disk before anything is done for the claim.
  kubelet does not ask again for claims of running pods, so the record must survive a crash, a power cut and a restart.
- `ledger_copy` is a text file beside it to which every commit is appended. It is not flushed, so it costs almost
  nothing. CDI specs are in /var/run and are gone after a reboot; without the copy, a damaged ledger would then lose
  every claim.
- The claim's CDI spec (`specs`) holds a copy of the record too. The driver does not decide by it while the ledger can
  be read; it is written again from the record whenever it is missing.
- `record_store` keeps what the ledger says in memory, in step with the file and with another instance of the driver
  that writes to it, and it is all that decisions read.

`ledger_recovery` rebuilds a lost ledger from the copy, from the ledger's own rows and from CDI specs. If claims may be
missing in these, the driver prepares no new claim until an administrator says that the missing ones are gone
(`claims/record`, `dranode forget-lost`). What could not be read never counts as empty.
"""
