package hooksetup

import "time"

// No client rewrites the files of these tests.
func init() { settle = time.Millisecond } //nolint:gochecknoinits // before all tests
