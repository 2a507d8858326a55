package cli

import (
	"fmt"
	"time"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
)

const (
	day = 24 * time.Hour
	// callsKept is how long the journal stores records of calls if its size limit allows this.
	callsKept = 90 * day
)

// journalRoom contains the size limit for the journal's records of calls and the used size, in bytes.
type journalRoom struct {
	Bytes int64 `json:"bytes"`
	Used  int64 `json:"used"`
	// LastsDays is the number of days for which the limit is enough at the current rate of calls. It is 0 if the rate is
	// not known yet.
	LastsDays float64 `json:"lastsDays,omitzero"`
}

func newJournalRoom(j *gatewayv1.JournalStatus) journalRoom {
	return journalRoom{Bytes: j.GetCallsRoomBytes(), Used: j.GetCallsBytes(), LastsDays: j.GetCallsRoomLasts().AsDuration().Hours() / 24}
}

// String describes the limit in one line. If records would be deleted before they are 90 days old, the line also
// contains the limit that would prevent this.
func (r journalRoom) String() string {
	line := fmt.Sprintf("%d of %d MiB for calls", r.Used>>20, r.Bytes>>20)
	switch maxDays := callsKept.Hours() / 24; {
	case r.LastsDays == 0:
		return line + "; too few calls to estimate for how many days this is enough"
	case r.LastsDays < maxDays:
		need := int64(float64(r.Bytes>>20)*maxDays/r.LastsDays) + 1
		return fmt.Sprintf("%s; at the current rate this is enough for %.1f of %.0f days: set journal.calls_mib to %d for all days", line, r.LastsDays, maxDays, need)
	default:
		return fmt.Sprintf("%s; enough for %.0f days", line, maxDays)
	}
}
