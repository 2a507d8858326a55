package wasmagent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/wasmagent"
)

// program is what the tests' workers are: without the race detector, with which compiling a
// guest takes half a minute.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "wasmagent-*")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "wasmagent")
	if out, err := exec.Command("go", "build", "-o", path, "./cmd/wasmagent").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// TestMain runs the tests.
func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := program(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// newService returns a service with a folder of its own.
func newService(t *testing.T) *wasmagent.Service {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	s, err := wasmagent.New(wasmagent.Config{Data: t.TempDir(), Program: path}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// A client is a caller of a service that is served.
type client struct {
	wasmagentv1.AgentServiceClient

	t   *testing.T
	ctx context.Context
}

// mesh is a service and its callers.
type mesh struct{ server *rpctest.Server }

func newMesh(t *testing.T) mesh {
	t.Helper()
	return mesh{rpctest.Serve(t, authv1.Role_ROLE_WASMAGENT, newService(t), rpctest.Options{})}
}

// agent is an agent's principal, for whom the gateway calls.
func (m mesh) agent(t *testing.T, subject string) client {
	t.Helper()
	return client{wasmagentv1.NewAgentServiceClient(m.server.Gateway()), t, authn.OnBehalfOf(t.Context(), rpctest.Principal("default", subject))}
}

// person is the holder of a token.
func (m mesh) person(t *testing.T, token string) client {
	t.Helper()
	return client{wasmagentv1.NewAgentServiceClient(m.server.Person(t, token)), t, t.Context()}
}

// create makes an agent, and returns its id.
func (c client) create(req *wasmagentv1.CreateAgentRequest) string {
	c.t.Helper()
	resp, err := c.CreateAgent(c.ctx, req)
	if err != nil {
		c.t.Fatalf("%v (the guests are built by make build)", err)
	}
	return resp.GetAgent().GetId()
}

// prompt prompts an agent, and returns what it told and what it answered.
func (c client) prompt(id, input string) (told []string, _ *wasmagentv1.PromptAgentResponse, _ error) {
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
			return told, last, nil
		case err != nil:
			return told, nil, err
		case resp.GetProgress() != nil:
			told = append(told, resp.GetProgress().GetMessage())
		default:
			last = resp
		}
	}
}

// answers prompts an agent that answers.
func (c client) answers(id, input string) *wasmagentv1.PromptAgentResponse {
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

func (c client) stopped(id string) (bool, wasmagentv1.StopReason) {
	c.t.Helper()
	resp, err := c.GetStopStatus(c.ctx, &wasmagentv1.GetStopStatusRequest{AgentId: id})
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.GetIsStopped(), resp.GetStopReason()
}
