package upstream

import (
	"fmt"
	"time"
)

// A LimitError means that a stdio server's process was terminated, or is not started, because it has reached a limit.
// The error contains no content that the server has sent.
type LimitError struct {
	// Key is the configuration key of the limit, such as `servers.files.stdio.limits.tasks`.
	Key string
	// What describes the reached limit, such as "it reached its limit of 512 tasks".
	What string
	// RetryAfter is the time until the process may be started again, or 0 if the process has only just been terminated.
	RetryAfter time.Duration
}

// Error describes the limit and contains its configuration key.
func (e *LimitError) Error() string {
	suffix := ""
	if e.RetryAfter > 0 {
		suffix = fmt.Sprintf("; it is started again in %s at the earliest", e.RetryAfter.Round(time.Second))
	}
	return fmt.Sprintf("the server's program was ended: %s (%s)%s", e.What, e.Key, suffix)
}
