package hooksetup

import "time"

// settle can be short, because no client rewrites the files in these tests.
func init() { settle = time.Millisecond } //nolint:gochecknoinits // before all tests
