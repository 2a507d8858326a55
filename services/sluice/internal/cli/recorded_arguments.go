package cli

import (
	"fmt"
	"time"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
)

// recordedArguments describes the stored copies of calls' arguments.
type recordedArguments struct {
	Bytes    int64     `json:"bytes"`
	MaxBytes int64     `json:"maxBytes"`
	Oldest   time.Time `json:"oldest"`
	// RetentionHours is the maximum number of hours for which a copy is stored.
	RetentionHours float64 `json:"retentionHours"`
	// RemovedEarly is the time when copies were last removed because of MaxBytes. It is nil if this has not happened.
	RemovedEarly *time.Time `json:"removedEarly,omitempty"`
}

func newRecordedArguments(r *gatewayv1.RecordedArgumentsStatus) *recordedArguments {
	if r == nil {
		return nil
	}
	return &recordedArguments{
		Bytes: r.GetBytes(), MaxBytes: r.GetMaxBytes(), Oldest: r.GetOldest().AsTime(),
		RetentionHours: r.GetRetention().AsDuration().Hours(), RemovedEarly: timeOrNil(r.GetRemovedEarly()),
	}
}

// String describes the copies in one line. If copies were removed because of MaxBytes, the line says how to prevent
// this.
func (r recordedArguments) String() string {
	size := fmt.Sprintf("%.1f", float64(r.Bytes)/(1<<20))
	if size == "0.0" {
		size = "less than 0.1"
	}
	line := fmt.Sprintf("%s of %d MiB recorded, since %s", size, r.MaxBytes>>20, localTime(r.Oldest))
	if r.RemovedEarly != nil {
		line += fmt.Sprintf("; copies younger than %.0f days were removed for lack of space: raise journal.arguments.mib, or record fewer calls", r.RetentionHours/24)
	}
	return line
}
