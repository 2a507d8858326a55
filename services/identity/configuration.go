package identity

import (
	"context"
	"time"
)

// rescanInterval is the interval at which the configuration is read.
const rescanInterval = 500 * time.Millisecond

// configurationScan holds the state of repeated scans of the configuration's tokens, groups and issuers.
type configurationScan struct {
	last Identities
	// problem is the text of the last logged error.
	problem string
}

// watchConfiguration reads the configuration at regular intervals until ctx is done.
func (s *Service) watchConfiguration(ctx context.Context) error {
	if s.deps.Reload == nil {
		return nil
	}
	tick := time.NewTicker(rescanInterval)
	defer tick.Stop()
	var scan configurationScan
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.rescan(ctx, &scan)
		}
	}
}

// rescan reads the tokens, groups and issuers of the configuration. It makes them valid if they have changed and two
// consecutive scans have read the same values. Without the second scan, a partly written file could revoke tokens. If
// the configuration can't be read, the old tokens, groups and issuers stay valid.
func (s *Service) rescan(ctx context.Context, scan *configurationScan) {
	now, err := s.deps.Reload()
	before := s.tokens.identities()
	isSame, isNew := err == nil && now.equal(scan.last), !now.equal(before)
	if scan.last = now; err == nil && (!isSame || !isNew) {
		if !isNew {
			scan.problem = ""
		}
		return
	}
	if err == nil && len(now.Servers) > 0 {
		_, err = s.sealKey()
	}
	if err == nil {
		err = s.tokens.configure(now)
	}
	if err != nil {
		if err.Error() != scan.problem {
			s.deps.Log.ErrorContext(ctx, "the tokens, groups and issuers of the configuration can't be read again; the old ones stay valid", "error", err)
		}
		scan.problem = err.Error()
		return
	}
	scan.problem = ""
	s.deps.Log.InfoContext(ctx, "the tokens, groups, issuers or credentials of servers of the configuration have changed", "tokens", len(now.Tokens), "groups", len(now.Groups), "issuers", len(now.Issuers), "oauth_servers", len(now.Servers))
}
