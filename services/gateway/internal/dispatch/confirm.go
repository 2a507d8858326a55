package dispatch

import (
	"context"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
)

// SupportsForms reports whether the client that has sent initialize can show a form to its user. An empty elicitation
// capability includes forms, because the first revision with elicitation had no modes.
func SupportsForms(initialize *jsonrpc.Message, version string) bool {
	var capabilities struct {
		Elicitation map[string]jsontext.Value `json:"elicitation"`
	}
	raw := initialize.Capabilities.Of(initialize.Raw)
	if !mcp.HasFormElicitation(version) || json.Unmarshal(raw, &capabilities) != nil || capabilities.Elicitation == nil {
		return false
	}
	_, form := capabilities.Elicitation["form"]
	_, url := capabilities.Elicitation["url"]
	return form || !url
}

// elicitation is a request to show a form (MCP 2025-06-18, Elicitation).
type elicitation struct {
	Version string         `json:"jsonrpc"`
	ID      jsontext.Value `json:"id"`
	Method  string         `json:"method"`
	Params  struct {
		Message string         `json:"message"`
		Schema  jsontext.Value `json:"requestedSchema"`
	} `json:"params"`
}

// confirmForm is the schema of a form with one checkbox. The checkbox is not ticked by default, so that a client that
// accepts every form automatically does not confirm the call.
const confirmForm = `{"type":"object","properties":{"run":{"type":"boolean","title":"Run this call","default":false}},"required":["run"]}`

// confirmText returns the message that the agent's user reads. The call is indented, so that clients that render
// Markdown show it literally. Otherwise the arguments, which the agent has chosen, could hide text or make the client
// fetch a URL.
func confirmText(call string) string {
	const indent = "    "
	return `An agent wants to make the call below, which needs your consent. Tick "Run this call" and accept, and it runs; ` +
		"accept without the tick, or decline, and it does not.\n\n" + indent + strings.ReplaceAll(call, "\n", "\n"+indent)
}

// confirm returns a function that asks the client's user to confirm a call.
func (x *Exchange) confirm(out *Relay) attempt.Confirm {
	return func(ctx context.Context, text string) attempt.Confirmation {
		id := inputID()
		ask := elicitation{Version: "2.0", ID: x.Addressing.ClientID(id), Method: mcp.MethodElicit}
		ask.Params.Message = confirmText(text)
		ask.Params.Schema = jsontext.Value(confirmForm)
		message, err := json.Marshal(ask)
		if err != nil {
			x.Deps.Log.ErrorContext(ctx, "confirmation form could not be encoded", "error", err)
			return attempt.Unanswered
		}
		question, err := x.Session.ClientRequests.AddOwn(id)
		if err != nil {
			x.Deps.Log.WarnContext(ctx, "confirmation form not sent", "server", x.ServerName, "error", err)
			return attempt.Unanswered
		}
		defer question.Close()
		if out.SendMessage(message) != nil {
			return attempt.Unanswered
		}
		select {
		case m := <-question.Response():
			return confirmed(m.Result.Of(m.Raw))
		case <-question.Cancelled():
		case <-ctx.Done():
		}
		select {
		case m := <-question.Response(): // an answer that arrives at the same time still counts
			return confirmed(m.Result.Of(m.Raw))
		default:
			out.withdraw(id)
			return attempt.Unanswered
		}
	}
}

// confirmed parses the client's response to the form. If the user has closed the form, the result is Unanswered.
func confirmed(result []byte) attempt.Confirmation {
	var form struct {
		Action  string `json:"action"`
		Content struct {
			Run bool `json:"run"`
		} `json:"content"`
	}
	switch err := json.Unmarshal(result, &form); {
	case err != nil:
		return attempt.Unanswered
	case form.Action == "accept" && form.Content.Run:
		return attempt.Confirmed
	case form.Action == "accept" || form.Action == "decline":
		return attempt.Declined
	default:
		return attempt.Unanswered
	}
}

// withdraw notifies the client that the request with this raw id is cancelled.
func (o *Relay) withdraw(id []byte) {
	_ = o.SendMessage([]byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + string(o.exchange.Addressing.ClientID(id)) + `,"reason":"no request waits for the answer any longer"}}`))
}
