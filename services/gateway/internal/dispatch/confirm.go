package dispatch

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/forms"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
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

// confirmForm is the schema of a form with one checkbox. The checkbox is not ticked by default. Therefore, a client
// that accepts all forms automatically does not confirm the call.
const confirmForm = `{"type":"object","properties":{"run":{"type":"boolean","title":"Run this call","default":false}},"required":["run"]}`

// confirmText returns the message that is shown to the person who uses the agent. The call is indented, so that clients
// that render Markdown show it literally. Otherwise, the arguments could hide text or make the client fetch a URL,
// because the agent chooses them.
func confirmText(call string) string {
	const indent = "    "
	return `An agent wants to make the call below, which needs your consent. Tick "Run this call" and accept, and it runs; ` +
		"accept without the tick, or decline, and it does not.\n\n" + indent + strings.ReplaceAll(call, "\n", "\n"+indent)
}

// minFormTime is how long a form must have been open before it counts as unanswered.
const minFormTime = time.Second

// formsClient returns the key of this client in package forms, which stores whether clients answer forms.
func (x *Exchange) formsClient() forms.Client {
	client := x.Session.Client
	return forms.Client{Tenant: x.Principal.GetTenant(), Subject: x.Principal.GetSubject(), Agent: x.Principal.GetAgent(), Name: client.Name, Version: client.Version}
}

// formTimeout returns a channel that receives a value when a form has been open for [forms.Timeout]. If the client has
// answered a form earlier, the channel is nil. The form then stays open for as long as the call is held.
func (x *Exchange) formTimeout() (expired <-chan time.Time, stop func() bool) {
	if x.Deps.Forms.State(x.formsClient()) == forms.Answers {
		return nil, func() bool { return false }
	}
	timer := time.NewTimer(forms.Timeout)
	return timer.C, timer.Stop
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
		return x.awaitForm(ctx, out, question, id)
	}
}

// awaitForm waits for the client's response to a form, and records whether the client has responded.
func (x *Exchange) awaitForm(ctx context.Context, out *Relay, question *session.ClientRequest, id []byte) attempt.Confirmation {
	begin, late := time.Now(), false
	expired, stop := x.formTimeout()
	defer stop()
	answered := func(m *jsonrpc.Message) attempt.Confirmation {
		x.Deps.Forms.RecordAnswered(ctx, x.formsClient())
		return confirmed(m.Result.Of(m.Raw))
	}
	select {
	case m := <-question.Response():
		return answered(m)
	case <-question.Cancelled():
	case <-expired:
		late = true
	case <-ctx.Done():
	}
	select {
	case m := <-question.Response(): // a response that arrives at the same time still counts
		return answered(m)
	default:
	}
	out.withdraw(id)
	if late || errors.Is(ctx.Err(), context.DeadlineExceeded) && time.Since(begin) >= minFormTime {
		x.Deps.Forms.RecordUnanswered(ctx, x.formsClient())
	}
	if late {
		return attempt.Silent
	}
	return attempt.Unanswered
}

// recordLateAnswer records that the client has responded to a form although the call is no longer held. An error or a
// cancelled form does not count, because a client may send these without asking its user.
func (x *Exchange) recordLateAnswer(ctx context.Context) {
	m := x.Message
	if !x.Session.Client.Elicits || !bytes.HasPrefix(m.ID.Of(m.Raw), []byte(`"`+inputIDPrefix)) {
		return
	}
	if confirmed(m.Result.Of(m.Raw)) != attempt.Unanswered {
		x.Deps.Forms.RecordAnswered(ctx, x.formsClient())
	}
}

// confirmed parses the client's response to the form. If the user has dismissed the form, confirmed returns Unanswered.
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

// withdraw notifies the client that the gateway has cancelled its request with this raw id.
func (o *Relay) withdraw(id []byte) {
	_ = o.SendMessage([]byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + string(o.exchange.Addressing.ClientID(id)) + `,"reason":"no request waits for the answer any longer"}}`))
}
