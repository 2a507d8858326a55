package approval

import "context"

// WatchPolicy keeps up with the policy role as Run does, and does nothing else.
func (s *Service) WatchPolicy(ctx context.Context) { s.verdicts.revisions.watch(ctx) }
