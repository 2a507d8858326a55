package wasmagent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/wasmagent"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/models"
)

// slowGateway is a gateway that blocks each call until the test closes the channel release.
type slowGateway struct {
	begun   chan string
	release chan struct{}

	mu   sync.Mutex
	made map[string]int
}

func newSlowGateway() *slowGateway {
	return &slowGateway{begun: make(chan string, 100), release: make(chan struct{}), made: make(map[string]int)}
}

func (g *slowGateway) answer(ctx context.Context, req *gatewayv1.CallToolRequest) (*gatewayv1.ToolAnswer, error) {
	if req.GetTool() == "panic" {
		panic("a fault of the program")
	}
	g.mu.Lock()
	g.made[req.GetArgumentsJson()]++
	g.mu.Unlock()
	g.begun <- req.GetArgumentsJson()
	select {
	case <-g.release:
		return answerOf("done"), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (g *slowGateway) waitForCalls(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		select {
		case <-g.begun:
		case <-time.After(waitLimit):
			t.Fatalf("%d calls are under way, want %d", i, n)
		}
	}
}

// newServiceWithLimits returns a service with the given configuration, and the gateway that blocks the service's calls.
func newServiceWithLimits(t *testing.T, cfg wasmagent.Config) (testService, *slowGateway) {
	t.Helper()
	gateway := newSlowGateway()
	cfg.Data = t.TempDir()
	s := openService(t, cfg, gateway.answer)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return testService{rpctest.Serve(t, authv1.Role_ROLE_WASMAGENT, s, rpctest.Options{})}, gateway
}

type promptResult struct {
	answer *wasmagentv1.PromptAgentResponse
	err    error
}

func (c client) promptAsync(id, input string) <-chan promptResult {
	out := make(chan promptResult, 1)
	go func() {
		_, answer, err := c.prompt(id, input)
		out <- promptResult{answer, err}
	}()
	return out
}

// A turn releases its slot while it waits for a tool. Therefore, the calls of several turns can wait at the same time
// even if there is only one slot. Each call is sent once, each turn gets its own results, and VerifyAgent reports that
// each journal matches.
func TestTurns_ReleaseSlotsWhileCallsWait(t *testing.T) {
	t.Parallel()
	m, gateway := newServiceWithLimits(t, wasmagent.Config{Turns: wasmagent.ConcurrencyLimits{Total: 1}, YieldAfter: 20 * time.Millisecond})
	c := m.onBehalfOfUser(t, "ana")
	const agents = 4
	var ids []string
	var ends []<-chan promptResult
	for i := range agents {
		id := c.create(&wasmagentv1.CreateAgentRequest{Manifest: toolManifest("slow")})
		c.mustPrompt(id, "todo pending x")
		ids = append(ids, id)
		ends = append(ends, c.promptAsync(id, fmt.Sprintf("todo completed x\ntool demo slow {\"n\":\"%d-a\"}\ntool demo slow {\"n\":\"%d-b\"}\nsay after", i, i)))
	}
	gateway.waitForCalls(t, agents)
	free := c.create(new(wasmagentv1.CreateAgentRequest))
	if answer := c.mustPrompt(free, "say here").GetResponse(); answer != "here" {
		t.Errorf("while all agents wait, another agent answers %q", answer)
	}
	for _, id := range ids {
		if waiting := c.state(id).GetInfo().GetWaiting(); waiting.GetWaitingFor() != wasmagentv1.WaitingFor_WAITING_FOR_EFFECT {
			t.Errorf("an agent that waits for its call waits for %v", waiting)
		}
	}
	close(gateway.release)
	for i, end := range ends {
		if got := <-end; got.err != nil || got.answer.GetResponse() != "done\ndone\nafter" {
			t.Errorf("turn %d: %q, %v", i, got.answer.GetResponse(), got.err)
		}
	}
	for call, n := range gateway.made {
		if n != 1 {
			t.Errorf("%s was made %d times", call, n)
		}
	}
	if len(gateway.made) != 2*agents {
		t.Errorf("the calls are %v", gateway.made)
	}
	for _, id := range ids {
		c.verifyMatches(id)
	}
}

// A turn releases its slot while it sleeps. A turn that has no slot can be cancelled and stopped. After a turn was
// stopped, its call is not repeated.
func TestTurns_EndWithoutSlot(t *testing.T) {
	t.Parallel()
	m, gateway := newServiceWithLimits(t, wasmagent.Config{Turns: wasmagent.ConcurrencyLimits{Total: 1}, YieldAfter: 20 * time.Millisecond})
	c := m.onBehalfOfUser(t, "ana")
	ctx, cancel := context.WithCancel(c.ctx)
	sleeper := c
	sleeper.ctx = ctx
	asleep := c.create(new(wasmagentv1.CreateAgentRequest))
	slept := sleeper.promptAsync(asleep, "write a.txt x\nsleep 9m")
	eventually.Holds(t, "the agent sleeps", func() bool {
		return c.state(asleep).GetInfo().GetWaiting().GetWaitingFor() == wasmagentv1.WaitingFor_WAITING_FOR_EFFECT
	})
	id := c.create(&wasmagentv1.CreateAgentRequest{Manifest: toolManifest("slow", "panic")})
	stopped := c.promptAsync(id, `tool demo slow {"n":"stopped"}`)
	gateway.waitForCalls(t, 1)
	if answer := c.mustPrompt(c.create(new(wasmagentv1.CreateAgentRequest)), "say here").GetResponse(); answer != "here" {
		t.Errorf("while both agents wait, another agent answers %q", answer)
	}
	cancel()
	if got := <-slept; got.err == nil {
		t.Errorf("the sleeping agent ends with %v", got.answer)
	}
	eventually.Holds(t, "the turn is undone", func() bool { return len(c.files(asleep)) == 0 })
	if _, err := c.StopAgent(c.ctx, &wasmagentv1.StopAgentRequest{AgentId: id}); err != nil {
		t.Fatal(err)
	}
	rpctest.WantStatus(t, (<-stopped).err, codes.FailedPrecondition, "AGENT_STOPPED")
	if _, err := c.ResumeAgent(c.ctx, &wasmagentv1.ResumeAgentRequest{AgentId: id}); err != nil {
		t.Fatal(err)
	}
	if answer := c.mustPrompt(id, "say again").GetResponse(); answer != "again" || gateway.made[`{"n":"stopped"}`] != 1 {
		t.Errorf("the resumed agent answers %q, and its call was made %d times", answer, gateway.made[`{"n":"stopped"}`])
	}
	_, _, err := c.prompt(id, "tool demo panic {}")
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "AGENT_FAILED")
	if cause := c.state(id).GetInfo().GetFailure().GetCause(); cause != wasmagentv1.FailureCause_FAILURE_CAUSE_INTERNAL {
		t.Errorf("the cause of a panic in a call is %v", cause)
	}
	c.verifyMatches(id)
}

// If all slots are in use, a prompt waits for a slot, and the agent's state shows that the prompt is waiting. If a
// person's queue is full, only further prompts of that person are refused. A prompt that is cancelled while it waits
// does not change its agent.
func TestTurns_WaitForSlots(t *testing.T) {
	t.Parallel()
	m, gateway := newServiceWithLimits(t, wasmagent.Config{Turns: wasmagent.ConcurrencyLimits{Total: 2, PerPerson: 1, MaxQueued: 10, MaxQueuedPerPerson: 2}, YieldAfter: time.Hour})
	ana, ben := m.onBehalfOfUser(t, "ana"), m.onBehalfOfUser(t, "ben")
	var ids []string
	for range 4 {
		ids = append(ids, ana.create(&wasmagentv1.CreateAgentRequest{Manifest: toolManifest("slow")}))
	}
	works := ana.promptAsync(ids[0], "tool demo slow {}")
	gateway.waitForCalls(t, 1)
	queued := func(id string) func() bool {
		return func() bool {
			info := ana.state(id).GetInfo()
			return info.GetState() == wasmagentv1.AgentState_AGENT_STATE_WAITING && info.GetWaiting().GetWaitingFor() == wasmagentv1.WaitingFor_WAITING_FOR_QUOTA
		}
	}
	second := ana.promptAsync(ids[1], "say second")
	eventually.Holds(t, "the second waits for a place", queued(ids[1]))
	_, _, err := ana.prompt(ids[1], "say more")
	rpctest.WantStatus(t, err, codes.Aborted, "AGENT_BUSY")
	ctx, cancel := context.WithCancel(ana.ctx)
	leaves := ana
	leaves.ctx = ctx
	events := len(ana.events(ids[2]))
	third := leaves.promptAsync(ids[2], "say third")
	eventually.Holds(t, "the third waits for a place", queued(ids[2]))
	_, _, err = ana.prompt(ids[3], "say fourth")
	rpctest.WantStatus(t, err, codes.ResourceExhausted, "PROMPTS_FULL")
	if !strings.Contains(err.Error(), "1 of one caller and 2 in all work at a time") {
		t.Errorf("the prompt is refused with %v", err)
	}
	if answer := ben.mustPrompt(ben.create(new(wasmagentv1.CreateAgentRequest)), "say here").GetResponse(); answer != "here" {
		t.Errorf("the agent of another person answers %q", answer)
	}
	cancel()
	if got := <-third; got.err == nil {
		t.Errorf("the prompt that gave up ends with %v", got.answer)
	}
	eventually.Holds(t, "the agent is idle again", func() bool {
		return ana.state(ids[2]).GetInfo().GetState() == wasmagentv1.AgentState_AGENT_STATE_IDLE
	})
	if now := len(ana.events(ids[2])); now != events {
		t.Errorf("the journal has %d events after the cancelled prompt, and had %d before", now, events)
	}
	close(gateway.release)
	if got := <-works; got.err != nil || got.answer.GetResponse() != "done" {
		t.Errorf("the first: %v, %v", got.answer, got.err)
	}
	if got := <-second; got.err != nil || got.answer.GetResponse() != "second" {
		t.Errorf("the second: %v, %v", got.answer, got.err)
	}
}

// Questions to models wait for slots, too. If a question exceeds its timeout, it fails with an error that contains the
// configuration key of the timeout.
func TestQuestions_WaitForSlotsAndTimeOut(t *testing.T) {
	t.Parallel()
	release, begun := make(chan struct{}), make(chan struct{}, 10)
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		begun <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, `data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"yes"},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
	}))
	t.Cleanup(provider.Close)
	providers := map[string]models.Provider{"p": {Kind: "openai", URL: provider.URL, Retry: models.Retry{Tries: 1}}}
	ask := func(m testService, person string) <-chan error {
		out := make(chan error, 1)
		p := rpctest.Principal("default", "agent:default/a")
		p.Owner = person
		client := m.onBehalfOf(t, p)
		go func() {
			stream, err := wasmagentv1.NewModelServiceClient(client.conn).AskModel(client.ctx, &wasmagentv1.AskModelRequest{
				Model: "p:m", Messages: []*wasmagentv1.ModelMessage{{Role: wasmagentv1.MessageRole_MESSAGE_ROLE_USER, Content: "Is it so?"}},
			})
			for err == nil {
				_, err = stream.Recv()
			}
			if errors.Is(err, io.EOF) {
				err = nil
			}
			out <- err
		}()
		return out
	}
	m, _ := newServiceWithLimits(t, wasmagent.Config{Models: providers, Questions: wasmagent.ConcurrencyLimits{Total: 1, MaxQueuedPerPerson: 1}})
	first := ask(m, "ana")
	<-begun
	second, third := ask(m, "ana"), ask(m, "ana") // one of the two waits, and the other is refused
	var refused error
	select {
	case refused = <-second:
		second = third
	case refused = <-third:
	}
	rpctest.WantStatus(t, refused, codes.ResourceExhausted, "QUESTIONS_FULL")
	close(release)
	for _, one := range []<-chan error{first, second} {
		if err := <-one; err != nil {
			t.Errorf("a question that waited for its place: %v", err)
		}
	}
	release = make(chan struct{})
	short, _ := newServiceWithLimits(t, wasmagent.Config{Models: providers, QuestionTimeout: 100 * time.Millisecond})
	err := <-ask(short, "ana")
	rpctest.WantStatus(t, err, codes.Aborted, "MODEL_TIMED_OUT")
	if !strings.Contains(err.Error(), "agents.questions.timeout") {
		t.Errorf("the question is refused with %v", err)
	}
}
