package wasmagent_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/wasmagent"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/guesttest"
)

func TestMain(m *testing.M) { os.Exit(guesttest.Main(m)) }

// newService returns a service with an empty data directory. The service's gateway refuses all calls.
func newService(t *testing.T) *wasmagent.Service {
	t.Helper()
	return newServiceWith(t, func(context.Context, *gatewayv1.CallToolRequest) (*gatewayv1.ToolAnswer, error) {
		return nil, status.Error(codes.Unimplemented, "the gateway of this test refuses calls")
	})
}

func newServiceWith(t *testing.T, gateway gatewayFunc) *wasmagent.Service {
	t.Helper()
	s := openService(t, wasmagent.Config{Data: t.TempDir()}, gateway)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// openService returns a service, which the caller must close.
func openService(t *testing.T, cfg wasmagent.Config, gateway gatewayFunc) *wasmagent.Service {
	t.Helper()
	return openServiceAt(t, cfg, fakeGateway{answer: gateway})
}

// openServiceAt returns a service whose agents call tools through gateway. The caller must close the service.
func openServiceAt(t *testing.T, cfg wasmagent.Config, gateway gatewayv1.GatewayServiceClient) *wasmagent.Service {
	t.Helper()
	cfg.Program, cfg.ApprovalWait = guesttest.Program(t), 100*time.Millisecond
	shareCompiledModules(t, cfg.Data)
	s, err := wasmagent.New(cfg, wasmagent.Deps{Gateway: gateway, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// shareCompiledModules makes a data directory use the compiled modules that all tests share, because compiling a guest
// takes seconds.
func shareCompiledModules(t *testing.T, data string) {
	t.Helper()
	dir := filepath.Join(data, "wasmagent")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(guesttest.Cache(t), filepath.Join(dir, "compiled")); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
}

// restartableService is a service that can be stopped and restarted with the same data directory.
type restartableService struct {
	t       *testing.T
	cfg     wasmagent.Config
	gateway gatewayv1.GatewayServiceClient
	service *wasmagent.Service
	stop    func()
	testService
}

func newRestartableService(t *testing.T, gateway gatewayFunc) *restartableService {
	t.Helper()
	return newRestartableServiceAt(t, fakeGateway{answer: gateway})
}

// newRestartableServiceAt is like newRestartableService, but accepts any gateway client.
func newRestartableServiceAt(t *testing.T, gateway gatewayv1.GatewayServiceClient) *restartableService {
	t.Helper()
	l := &restartableService{t: t, cfg: wasmagent.Config{Data: t.TempDir()}, gateway: gateway}
	l.start()
	t.Cleanup(l.close)
	return l
}

func (l *restartableService) start() {
	l.t.Helper()
	l.service = openServiceAt(l.t, l.cfg, l.gateway)
	l.testService = testService{rpctest.Serve(l.t, authv1.Role_ROLE_WASMAGENT, l.service, rpctest.Options{})}
	ctx, cancel := context.WithCancel(context.Background())
	service, done := l.service, make(chan struct{})
	go func() {
		defer close(done)
		_ = service.Run(ctx)
	}()
	l.stop = func() { cancel(); <-done }
}

// close stops the service if it is running.
func (l *restartableService) close() {
	if l.service == nil {
		return
	}
	l.stop()
	if err := l.service.Close(); err != nil {
		l.t.Error(err)
	}
	l.service = nil
}

type gatewayFunc func(ctx context.Context, req *gatewayv1.CallToolRequest) (*gatewayv1.ToolAnswer, error)

// fakeGateway answers calls with a function. Requests to withdraw an approval always succeed.
type fakeGateway struct {
	gatewayv1.GatewayServiceClient

	answer gatewayFunc
}

// CallTool implements gatewayv1.GatewayServiceClient.
func (f fakeGateway) CallTool(ctx context.Context, req *gatewayv1.CallToolRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[gatewayv1.CallToolResponse], error) {
	answer, err := f.answer(ctx, req)
	if err != nil {
		return nil, err
	}
	return &oneAnswer{answer: answer}, nil
}

// WithdrawApproval implements gatewayv1.GatewayServiceClient.
func (f fakeGateway) WithdrawApproval(context.Context, *gatewayv1.WithdrawApprovalRequest, ...grpc.CallOption) (*gatewayv1.WithdrawApprovalResponse, error) {
	return new(gatewayv1.WithdrawApprovalResponse), nil
}

type oneAnswer struct {
	grpc.ClientStream

	answer *gatewayv1.ToolAnswer
}

// Recv implements grpc.ServerStreamingClient.
func (s *oneAnswer) Recv() (*gatewayv1.CallToolResponse, error) {
	if s.answer == nil {
		return nil, io.EOF
	}
	defer func() { s.answer = nil }()
	return &gatewayv1.CallToolResponse{Item: &gatewayv1.CallToolResponse_Answer{Answer: s.answer}}, nil
}

// A client calls a running service on behalf of one principal.
type client struct {
	wasmagentv1.AgentServiceClient

	conn grpc.ClientConnInterface
	t    *testing.T
	ctx  context.Context
}

func newClient(ctx context.Context, t *testing.T, conn grpc.ClientConnInterface) client {
	return client{wasmagentv1.NewAgentServiceClient(conn), conn, t, ctx}
}

type testService struct{ server *rpctest.Server }

func newTestService(t *testing.T) testService {
	t.Helper()
	return testService{rpctest.Serve(t, authv1.Role_ROLE_WASMAGENT, newService(t), rpctest.Options{})}
}

func newTestServiceWith(t *testing.T, gateway gatewayFunc) testService {
	t.Helper()
	return testService{rpctest.Serve(t, authv1.Role_ROLE_WASMAGENT, newServiceWith(t, gateway), rpctest.Options{})}
}

// onBehalfOf returns a client that calls the service as the gateway, on behalf of the principal p.
func (m testService) onBehalfOf(t *testing.T, p *identityv1.Principal) client {
	t.Helper()
	return newClient(authn.OnBehalfOf(t.Context(), p), t, m.server.Gateway())
}

// onBehalfOfUser returns a client that calls the service as the gateway, on behalf of the principal with the given
// subject.
func (m testService) onBehalfOfUser(t *testing.T, subject string) client {
	t.Helper()
	return newClient(authn.OnBehalfOf(t.Context(), rpctest.Principal("default", subject)), t, m.server.Gateway())
}

func (m testService) withToken(t *testing.T, token string) client {
	t.Helper()
	return newClient(t.Context(), t, m.server.Person(t, token))
}

// createTime is the timeout for creating an agent. The first agent takes longest, because its guest must be compiled.
const createTime = 2 * time.Minute

func (c client) create(req *wasmagentv1.CreateAgentRequest) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, createTime)
	defer cancel()
	resp, err := c.CreateAgent(ctx, req)
	if err != nil {
		c.t.Fatalf("%v (the guests are built by make build)", err)
	}
	return resp.GetAgent().GetId()
}

func (c client) prompt(id, input string) (progress []string, _ *wasmagentv1.PromptAgentResponse, _ error) {
	c.t.Helper()
	stream, err := c.PromptAgent(c.ctx, &wasmagentv1.PromptAgentRequest{AgentId: id, Input: input})
	if err != nil {
		return nil, nil, err
	}
	var last *wasmagentv1.PromptAgentResponse
	for {
		resp, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return progress, last, nil
		case err != nil:
			return progress, nil, err
		case resp.GetProgress() != nil:
			progress = append(progress, resp.GetProgress().GetMessage())
		default:
			last = resp
		}
	}
}

// mustPrompt prompts an agent, and fails the test if the agent does not answer.
func (c client) mustPrompt(id, input string) *wasmagentv1.PromptAgentResponse {
	c.t.Helper()
	_, answer, err := c.prompt(id, input)
	if err != nil {
		c.t.Fatal(err)
	}
	return answer
}

func (c client) state(id string) *wasmagentv1.GetStateResponse {
	c.t.Helper()
	resp, err := c.GetState(c.ctx, &wasmagentv1.GetStateRequest{AgentId: id})
	if err != nil {
		c.t.Fatal(err)
	}
	return resp
}

// waitUntilSleeping waits until the turn of an agent sleeps. A turn that waits for a tool call has the same state, so
// the agent must not call tools.
func (c client) waitUntilSleeping(id string) {
	c.t.Helper()
	eventually.Holds(c.t, "the agent sleeps", func() bool {
		return c.state(id).GetInfo().GetWaiting().GetWaitingFor() == wasmagentv1.WaitingFor_WAITING_FOR_EFFECT
	})
}

func (c client) todos(id string) []*wasmagentv1.Todo {
	c.t.Helper()
	resp, err := c.ListTodos(c.ctx, &wasmagentv1.ListTodosRequest{AgentId: id})
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.GetTodos()
}

func (c client) files(id string) []string {
	c.t.Helper()
	resp, err := c.ListFiles(c.ctx, &wasmagentv1.ListFilesRequest{AgentId: id})
	if err != nil {
		c.t.Fatal(err)
	}
	var paths []string
	for _, f := range resp.GetFiles() {
		paths = append(paths, f.GetPath())
	}
	return paths
}

func (c client) stopStatus(id string) (bool, wasmagentv1.StopReason) {
	c.t.Helper()
	resp, err := c.GetStopStatus(c.ctx, &wasmagentv1.GetStopStatusRequest{AgentId: id})
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.GetIsStopped(), resp.GetStopReason()
}
