package approval

import "context"

// WatchPolicy watches the active policy revision, as Run does.
func (s *Service) WatchPolicy(ctx context.Context) { s.decisions.revisions.watch(ctx) }
