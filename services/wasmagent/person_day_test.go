package wasmagent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/wasmagent"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/models"
)

// All agents of a person share a daily limit on model usage. Questions that the provider refuses are not counted, and a
// restart does not reset the usage. The error contains the time of the next reset and the configuration key of the
// limit.
func TestPersonDay_LimitsAllAgentsOfPerson(t *testing.T) {
	t.Parallel()
	var refuses atomic.Bool
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if refuses.Load() {
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, `data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"yes"},"finish_reason":"stop"}],"usage":{"prompt_tokens":600,"completion_tokens":0,"total_tokens":600}}`+"\n\ndata: [DONE]\n\n")
	}))
	t.Cleanup(provider.Close)
	for name, c := range map[string]struct {
		bound wasmagent.PersonDay
		says  string
	}{
		"tokens": {wasmagent.PersonDay{Tokens: 1000}, "all agents of ana together may use 1000 tokens a day, and 1200 are used; this renews at "},
		"cost":   {wasmagent.PersonDay{Cost: "0.001"}, "all agents of ana together may use 0.001 US dollars a day, and 0.0012 are used; this renews at "},
	} {
		t.Run(name, func(t *testing.T) { // not in parallel, because the subtests share the provider
			l := newRestartableService(t, func(context.Context, *gatewayv1.CallToolRequest) (*gatewayv1.ToolAnswer, error) {
				return answerOf(""), nil
			})
			l.close()
			l.cfg.PersonDay = c.bound
			l.cfg.Models = map[string]models.Provider{"p": {Kind: "openai", URL: provider.URL, Retry: models.Retry{Tries: 1}, Prices: map[string]models.Price{"m": {Input: "1", Output: "1"}}}}
			l.start()
			ask := func(agent, owner string) error {
				p := rpctest.Principal("default", "agent:default/"+agent)
				p.Owner = owner
				client := l.onBehalfOf(t, p)
				stream, err := wasmagentv1.NewModelServiceClient(client.conn).AskModel(client.ctx, &wasmagentv1.AskModelRequest{
					Model: "p:m", Messages: []*wasmagentv1.ModelMessage{{Role: wasmagentv1.MessageRole_MESSAGE_ROLE_USER, Content: "Is it so?"}},
				})
				for err == nil {
					_, err = stream.Recv()
				}
				if errors.Is(err, io.EOF) {
					return nil
				}
				return err
			}
			refuses.Store(true)
			for range 20 {
				rpctest.WantStatus(t, ask("a1", "ana"), codes.ResourceExhausted, "MODEL_RATE_LIMITED")
			}
			refuses.Store(false)
			for _, agent := range []string{"a1", "a2"} {
				if err := ask(agent, "ana"); err != nil {
					t.Fatalf("%s: %v", agent, err)
				}
			}
			for range 2 {
				err := ask("a3", "ana")
				rpctest.WantStatus(t, err, codes.ResourceExhausted, "MODEL_COST_SPENT")
				if want := fmt.Sprintf("an operator changes it with agents.person_day.%s", name); !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), want) {
					t.Errorf("the question is refused with %v", err)
				}
				if err := ask("b1", "ben"); err != nil {
					t.Errorf("another person: %v", err)
				}
				l.close()
				l.start()
			}
		})
	}
}
