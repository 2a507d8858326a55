package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-mesh/sluice/services/internal/enum"
)

// replayJSON is the JSON output of a replay.
type replayJSON struct {
	Since *time.Time `json:"since,omitzero"`
	Until time.Time  `json:"until"`
	// Complete is true if all calls in the period were read. Otherwise, only the calls since Searched were read.
	Complete bool       `json:"complete"`
	Searched *time.Time `json:"searched,omitzero"`
	// Calls is the number of calls that were read. Opened and Closed are the numbers of calls that would become less and
	// more restricted. Same is the number of calls with the same result. Unknown is the number of calls whose result is
	// not known. MayOpen is the number of calls in Unknown that may become less restricted.
	Calls   int64 `json:"calls"`
	Opened  int64 `json:"opened"`
	Closed  int64 `json:"closed"`
	Same    int64 `json:"same"`
	Unknown int64 `json:"unknown"`
	MayOpen int64 `json:"mayOpen"`
	// Others contains the number of calls that were refused for a reason other than rules, by code.
	Others []otherCalls `json:"others"`
	// Flips contains the rows for calls whose result changes. UnknownCalls contains the rows for calls whose result is not
	// known. WithoutRow is the number of calls without a row, because there are too many rows.
	Flips        []jsontext.Value `json:"flips"`
	UnknownCalls []jsontext.Value `json:"unknownCalls"`
	WithoutRow   int64            `json:"withoutRow"`
	// Findings contains the reasons why the documents can't be loaded.
	Findings []jsontext.Value `json:"findings"`
}

type otherCalls struct {
	Code  string `json:"code"`
	Calls int64  `json:"calls"`
}

func (t *tool) printReplayJSON(r *replayReport) error {
	flips, err1 := toJSON(r.flips.all)
	unknown, err2 := toJSON(r.unknown.all)
	found, err3 := toJSON(r.findings)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	out := replayJSON{
		Since: timeOrNil(r.filter.GetSince()), Until: r.until, Complete: r.complete, Searched: r.searched,
		Calls: r.calls(), Opened: r.opened, Closed: r.closed, Same: r.totals.GetSame(), Unknown: r.totals.GetUnknown(), MayOpen: r.mayOpen,
		Others: []otherCalls{}, Flips: flips, UnknownCalls: unknown, WithoutRow: r.flips.others + r.unknown.others, Findings: found,
	}
	others := r.others()
	for _, code := range byCalls(others) {
		out.Others = append(out.Others, otherCalls{enum.NameOrEmpty(code), others[code]})
	}
	return t.printJSON(out)
}

// toJSON returns the messages as JSON.
func toJSON[M proto.Message](messages []M) ([]jsontext.Value, error) {
	out := make([]jsontext.Value, len(messages))
	for i, m := range messages {
		raw, err := protojson.Marshal(m)
		if err != nil {
			return nil, fmt.Errorf("print the answer: %w", err)
		}
		out[i] = raw
	}
	return out, nil
}
