package cli

import (
	"fmt"
	"time"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
)

const (
	day = 24 * time.Hour
	// callsKept is how long the journal stores calls if they fit.
	callsKept = 90 * day
)

// journalRoom is the size limit of the journal's records of calls.
type journalRoom struct {
	Bytes int64 `json:"bytes"`
	Used  int64 `json:"used"`
	// LastsDays is the number of days that fit at the present rate; 0 if the rate is not known yet.
	LastsDays float64 `json:"lastsDays,omitzero"`
}

func toRoom(j *gatewayv1.JournalStatus) journalRoom {
	return journalRoom{Bytes: j.GetCallsRoomBytes(), Used: j.GetCallsBytes(), LastsDays: j.GetCallsRoomLasts().AsDuration().Hours() / 24}
}

// String returns it in one line, with what to do if less than 90 days fit.
func (r journalRoom) String() string {
	line := fmt.Sprintf("%d of %d MiB for calls", r.Used>>20, r.Bytes>>20)
	switch most := callsKept.Hours() / 24; {
	case r.LastsDays == 0:
		return line + "; too few to tell for how many days that is enough"
	case r.LastsDays < most:
		need := int64(float64(r.Bytes>>20)*most/r.LastsDays) + 1
		return fmt.Sprintf("%s; at the present rate calls are kept for %.1f of %.0f days: all take journal.calls_mib: %d", line, r.LastsDays, most, need)
	default:
		return fmt.Sprintf("%s; enough for %.0f days", line, most)
	}
}
