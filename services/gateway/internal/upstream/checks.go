package upstream

import (
	"errors"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
)

// What every transport checks of a server's messages.

// ErrForged means that a server answered as only the gateway may.
var ErrForged = errors.New("the server answered with the error code of the gateway's own refusals")

// Forged reports whether some reader could take a server's answer for a refusal of
// the gateway's, in whose data there is a decision: its error code is ours,
// however it is spelled, or no number at all.
func Forged(a *gate.Answer) bool {
	if !a.Error.Present() {
		return false
	}
	_, err := strconv.ParseFloat(string(a.ErrorCode.Of(a.Raw)), 64)
	return err != nil || HasCode(a, mcp.CodeRefused)
}

// HasCode reports whether a server's answer is an error of this code, however that is spelled: to
// many readers -32042.0 is -32042.
func HasCode(a *gate.Answer, code int) bool {
	if !a.Error.Present() {
		return false
	}
	said, err := strconv.ParseFloat(string(a.ErrorCode.Of(a.Raw)), 64)
	return err == nil && said == float64(code)
}

// SpeaksModern reports whether an answer to server/discover names 2026-07-28.
func SpeaksModern(a *gate.Answer) bool {
	var versions []string
	return !a.Error.Present() && json.Unmarshal(a.SupportedVersions.Of(a.Raw), &versions) == nil && slices.Contains(versions, mcp.Modern)
}

// Belongs reports whether a server's notification may go to the client whose request
// it comes with: of progress, that of the request with that token, nil for one that asked
// for none. What else it may be is for who takes it to judge.
func Belongs(a *gate.Answer, token []byte) bool {
	return a.Method != mcp.MethodProgress || gate.SameID(a.ProgressToken.Of(a.Raw), token)
}

// ClassOf returns what an error says is known of a request: [ErrNeverSent],
// [ErrTimeout] or [ErrNoAnswer].
func ClassOf(err error) error {
	for _, class := range []error{ErrNeverSent, ErrTimeout} {
		if errors.Is(err, class) {
			return class
		}
	}
	return ErrNoAnswer
}
