"""Clock policies on random machines and jobs, in virtual time."""
