package upstream

import (
	"errors"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
)

// This file contains checks that every transport applies to messages from a server.

// ErrForged means that a server has sent an answer that only the gateway may send.
var ErrForged = errors.New("the server answered with the error code of the gateway's own refusals")

// IsForged reports whether a client could mistake a server's answer for a refusal by the gateway, and its error data
// for a policy decision. This is the case if the error code is not a number, or is equal to one of the gateway's codes
// in any number format.
func IsForged(a *jsonrpc.Answer) bool {
	if !a.Error.Present() {
		return false
	}
	_, err := strconv.ParseFloat(string(a.ErrorCode.Of(a.Raw)), 64)
	return err != nil || HasCode(a, mcp.CodeRefused)
}

// HasCode reports whether a server's answer is an error with the given code, in any number format. For example, many
// parsers treat -32042.0 as -32042.
func HasCode(a *jsonrpc.Answer, code int) bool {
	if !a.Error.Present() {
		return false
	}
	said, err := strconv.ParseFloat(string(a.ErrorCode.Of(a.Raw)), 64)
	return err == nil && said == float64(code)
}

// SpeaksModern reports whether a server's response to server/discover contains revision 2026-07-28.
func SpeaksModern(a *jsonrpc.Answer) bool {
	var versions []string
	return !a.Error.Present() && json.Unmarshal(a.SupportedVersions.Of(a.Raw), &versions) == nil && slices.Contains(versions, mcp.Modern)
}

// BelongsToRequest reports whether the client that waits for an answer may receive a notification from the server. A
// progress notification must have the progress token of the client's request. token is this progress token, or nil if
// the request has none. All other notifications are accepted, because their receivers check them.
func BelongsToRequest(a *jsonrpc.Answer, token []byte) bool {
	return a.Method != mcp.MethodProgress || jsonrpc.SameID(a.ProgressToken.Of(a.Raw), token)
}

// ClassOf returns the class of a request's error, which is [ErrNeverSent], [ErrTimeout] or [ErrNoAnswer]. If the error
// wraps neither ErrNeverSent nor ErrTimeout, its class is ErrNoAnswer.
func ClassOf(err error) error {
	for _, class := range []error{ErrNeverSent, ErrTimeout} {
		if errors.Is(err, class) {
			return class
		}
	}
	return ErrNoAnswer
}
