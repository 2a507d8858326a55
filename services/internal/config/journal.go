package config

import "time"

// check checks the settings of the journal.
func (j *Journal) check(p *problems) {
	if j.Sync != "never" && j.Sync != "always" {
		p.addf("journal.sync", "%q is not one of never, always", j.Sync)
	}
	if n := j.CallsMiB; n < 64 || n > 1<<20 {
		p.addf("journal.calls_mib", "%d is not between 64 and 1048576", n)
	}
	if s := j.Share; !(s > 0 && s <= 1) {
		p.addf("journal.share", "%v is not above 0 and at most 1", s)
	}
	p.checkBetween("journal.arguments.retention", j.Arguments.Retention, time.Hour, 90*24*time.Hour)
	if n := j.Arguments.MiB; n < 16 || n > 1<<20 {
		p.addf("journal.arguments.mib", "%d is not between 16 and 1048576", n)
	}
}
