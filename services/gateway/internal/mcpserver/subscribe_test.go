package mcpserver_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// Case T4. On a subscription's stream, the client receives the notifications that are related to methods that the
// policy allows, and updates of the resources to which the caller may subscribe.
func TestSubscription_ForwardsWhatPolicyAllows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernGateway(t, "prompts/list", "resources/subscribe")
		asked := make(chan string, 1)
		w.files.Request = func(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			asked <- string(r.Body())
			for _, method := range []string{"subscriptions/acknowledged", "tools/list_changed", "prompts/list_changed", "resources/list_changed", "x/y"} {
				events([]byte(`{"jsonrpc":"2.0","method":"notifications/` + method + `","params":{}}`))
			}
			for _, uri := range []string{"file:///b", "file:///abc", "file:///a/below"} {
				events([]byte(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"` + uri + `"}}`))
			}
			<-ctx.Done()
			return upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, ctx.Err())
		}
		body, head := modern("subscriptions/listen", "", `"notifications":{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["file:///a"]}`)
		next, hangUp := w.callStreamUntil(head, body)
		defer hangUp()
		if got := <-asked; !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":7,`) || !strings.Contains(got, `"clientCapabilities":{},`) && !strings.Contains(got, `clientCapabilities":{}`) ||
			!strings.HasSuffix(got, `"notifications":{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":false,"resourceSubscriptions":["file:///a"]}}}`) {
			t.Errorf("the server got %s", got)
		}
		for _, want := range []string{"subscriptions/acknowledged", "tools/list_changed", "prompts/list_changed", "file:///a/below"} {
			if got := next(); !strings.Contains(got, want) {
				t.Errorf("the client got %s, want %s", got, want)
			}
		}
		if got := w.Journal.Records(journal.KindIntent); len(got) != 1 || got[0].Method != "resources/subscribe" || got[0].Tool != "file:///a" {
			t.Errorf("on record: %+v", got)
		}
		w.Sessions.CloseStreams()
		if got := next(); got != "" {
			t.Errorf("after the gateway has hung up the client got %s", got)
		}
	})
}

// Case A3. A subscription does not include resources that the policy denies. Once a client's token has been revoked,
// the client receives no further notifications.
func TestSubscription_ResourcesAreDecided(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernGateway(t, everything...)
		w.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY}
		asked, say := make(chan string, 1), make(chan string)
		w.files.Request = func(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			asked <- string(r.Body())
			for {
				select {
				case <-ctx.Done():
					return upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, ctx.Err())
				case method := <-say:
					events([]byte(`{"jsonrpc":"2.0","method":"notifications/` + method + `","params":{}}`))
				}
			}
		}
		body, head := modern("subscriptions/listen", "", `"notifications":{"resourceSubscriptions":["file:///a"]}`)
		go func() {
			say <- "subscriptions/acknowledged"
			say <- "resources/updated"
		}()
		next, hangUp := w.callStreamUntil(head, body)
		defer hangUp()
		if got := <-asked; !strings.Contains(got, `"resourceSubscriptions":[]`) {
			t.Errorf("the server got %s", got)
		}
		if got := next(); !strings.Contains(got, "acknowledged") {
			t.Errorf("the client got %s", got)
		}
		if err := w.tokens.Replace(nil); err != nil {
			t.Fatal(err)
		}
		if got := next(); got != "" { // the stream must end even if the server sends no more messages
			t.Errorf("a client without a token got %s", got)
		}
	})
}

// Case X4. Each resource in a subscription counts as a message for which no rule is needed. The limit on these messages
// therefore also limits how many subscriptions are evaluated.
func TestSubscription_CountIsLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernGateway(t, everything...)
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{}`), nil
		}
		body, head := modern("subscriptions/listen", "", `"notifications":{"resourceSubscriptions":["file:///a"`+strings.Repeat(`,"file:///b"`, 99)+`]}`)
		for range 120 {
			w.do("POST", "/mcp/files", body, head)
		}
		if n := len(w.Journal.Records(journal.KindIntent)); n == 0 || n > 10_000 {
			t.Errorf("%d were judged in a minute", n)
		}
	})
}
