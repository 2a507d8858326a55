package hooksetup

import "time"

// The time is short, because no client rewrites the files in these tests.
func init() { settle = time.Millisecond } //nolint:gochecknoinits // before all tests
