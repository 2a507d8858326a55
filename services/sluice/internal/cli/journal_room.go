package cli

import (
	"fmt"
	"time"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
)

const (
	day = 24 * time.Hour
	// callsKept is for how long the journal keeps calls if there is room.
	callsKept = 90 * day
)

// journalRoom is how much room the journal's records of calls have.
type journalRoom struct {
	Bytes int64 `json:"bytes"`
	Used  int64 `json:"used"`
	// LastsDays is for how many days it is enough at the present rate; 0: not known yet.
	LastsDays float64 `json:"lastsDays,omitzero"`
}

func toRoom(j *gatewayv1.JournalStatus) journalRoom {
	return journalRoom{Bytes: j.GetCallsRoomBytes(), Used: j.GetCallsBytes(), LastsDays: j.GetCallsRoomLasts().AsDuration().Hours() / 24}
}

// String says it in one line, with what to do if calls are kept for less than 90 days.
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
