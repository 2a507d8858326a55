package upstream

import (
	"context"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/redact"
)

// unwrapped is a transport to a server that reports tool errors inside successful results.
type unwrapped struct {
	Transport

	clean *redact.Redactor
}

// StartingSince implements [Starter].
func (u *unwrapped) StartingSince() time.Time {
	if starter, ok := u.Transport.(Starter); ok {
		return starter.StartingSince()
	}
	return time.Time{}
}

// Notice implements [Starter].
func (u *unwrapped) Notice() string {
	if starter, ok := u.Transport.(Starter); ok {
		return starter.Notice()
	}
	return ""
}

// Unwrap returns a transport that restores a server's tool errors. Claude Flow reports a failed tool,
// `{"content":[…],"isError":true}`, as the only text in a successful result. The transport replaces such a result with
// the result in its text. It does not change other answers.
//
// The transport also redacts secrets in the restored result. The restored result was JSON inside a JSON string, and the
// escapes in this string can hide a secret from a search in the outer JSON.
func Unwrap(t Transport, secrets []string) Transport {
	return &unwrapped{Transport: t, clean: redact.New(nil, secrets)}
}

// Open implements Transport.
func (u *unwrapped) Open(ctx context.Context, key principal.Key, initialize Request) (Conn, Answer, error) {
	conn, answer, err := u.Transport.Open(ctx, key, initialize)
	if err != nil {
		return nil, answer, err
	}
	return &unwrappedConn{Conn: conn, clean: u.clean}, answer, nil
}

type unwrappedConn struct {
	Conn

	clean *redact.Redactor
}

// Request implements Conn.
func (c *unwrappedConn) Request(ctx context.Context, req Request, events func([]byte)) (Answer, error) {
	answer, err := c.Conn.Request(ctx, req, events)
	if err != nil || req.Method() != mcp.MethodToolsCall {
		return answer, err
	}
	answer.Message = c.restoreError(answer.Message)
	return answer, nil
}

// restoreError replaces the result in an answer with the tool error in the result's text. If the text contains no tool
// error, or the error is ambiguous, restoreError returns the answer unchanged.
func (c *unwrappedConn) restoreError(a *jsonrpc.Answer) *jsonrpc.Answer {
	inner := hiddenError(a)
	if inner == nil {
		return a
	}
	raw, err := jsonrpc.ApplyEdits(a.Raw, jsonrpc.Edit{Span: a.Result, With: c.clean.Answer(inner)})
	if err != nil {
		return a
	}
	limits := jsonrpc.AnswerLimits()
	limits.Bytes = len(raw) // the size was checked when the answer was read
	revealed, err := jsonrpc.ReadAnswer(raw, limits)
	if err != nil {
		return a
	}
	return revealed
}

// maxHidden is the maximum size, in bytes, of a result whose text is searched for a tool error. This limit exists
// because the search needs several copies of the result.
const maxHidden = 1 << 20

// hiddenError returns the text of a result if the text is the only content of the result, and is itself a result that
// reports an error. Otherwise, it returns nil.
func hiddenError(a *jsonrpc.Answer) []byte {
	var outer struct {
		Content []struct {
			Type string `json:"type"`
			Text string `json:"text"`
		} `json:"content"`
		IsError bool `json:"isError"`
	}
	if a.Result.End-a.Result.Start > maxHidden {
		return nil
	}
	err := json.Unmarshal(a.Result.Of(a.Raw), &outer, json.RejectUnknownMembers(true))
	if err != nil || outer.IsError || len(outer.Content) != 1 || outer.Content[0].Type != "text" {
		return nil
	}
	var inner struct {
		Content []jsontext.Value `json:"content"`
		IsError bool             `json:"isError"`
	}
	text := []byte(outer.Content[0].Text)
	if err := json.Unmarshal(text, &inner); err != nil || !inner.IsError || inner.Content == nil {
		return nil
	}
	return text
}
