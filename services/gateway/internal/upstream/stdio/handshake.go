package stdio

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// initialized is what a process is told once it has answered initialize.
const initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"

// refusalKept is how much of a server's refusal an error quotes, in bytes.
const refusalKept = 512

// handshake greets a process that was just started: with initialize or, where the server is known to
// have no sessions, with server/discover (MCP 2026-07-28). One that refuses initialize is asked the
// other. If it fails, the process has ended when handshake returns. The answer is kept for as long as
// the process lives, so there is no room for a large one.
func (p *process) handshake(hello *gate.Message) error {
	limit := p.server.cfg.HandshakeTimeout
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	answer, err := p.hail(ctx, hello)
	if err == nil && hello.Method == mcp.MethodInitialize && (upstream.Answer{Message: answer}).Refuses() {
		instead := discover(hello)
		if second, failed := p.hail(ctx, instead); failed == nil && speaksModern(second) {
			p.server.era.Store(&era{refusal: answer})
			answer, hello = second, instead
		}
	}
	switch {
	case errors.Is(err, upstream.ErrTimeout):
		p.end(fmt.Errorf("it did not answer %s within %s", hello.Method, limit))
	case err != nil:
		p.end(fmt.Errorf("it gave no usable answer to %s: %w", hello.Method, err))
	case answer.Error.Present(), hello.Method == mcp.MethodDiscover && !speaksModern(answer):
		p.server.era.Store(nil) // it may have become older
		err = upstream.ErrNoAnswer
		refusal := p.server.clean.Log(string(answer.Error.Of(answer.Raw)))
		p.end(fmt.Errorf("it refused %s: %s", hello.Method, printable(refusal, refusalKept)))
	default:
		p.greeting, p.hello, p.modern = hello, answer, hello.Method == mcp.MethodDiscover
		if p.modern {
			return nil
		}
		p.server.era.Store(new(era))
		if err = p.send(ctx, []byte(initialized)); err == nil {
			return nil
		}
		p.end(errors.New("it did not take notifications/initialized"))
	}
	<-p.done
	return fmt.Errorf("%w: %w", upstream.ClassOf(err), p.cause)
}

// hail sends a greeting.
func (p *process) hail(ctx context.Context, hello *gate.Message) (*gate.Answer, error) {
	p.calls.greets()
	return p.do(ctx, p.register(hello, nil, false), nil)
}

// greet returns the answer to its greeting for one more session.
func (p *process) greet(hello *gate.Message) (*gate.Answer, error) {
	answer, err := p.hello.Addressed(hello.ID.Of(hello.Raw))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, err)
	}
	return answer, nil
}

// era is what the server's processes were found to speak.
type era struct {
	// refusal is the answer to initialize of a server that speaks 2026-07-28 alone; nil for one that has
	// sessions.
	refusal *gate.Answer
}

// isModern tells whether the server is known to speak 2026-07-28 alone.
func (e *era) isModern() bool { return e != nil && e.refusal != nil }

// discover is the request for what a server speaks, of the client of another greeting.
func discover(hello *gate.Message) *gate.Message {
	name, version := hello.Client()
	return upstream.Discover(&upstream.Client{Name: name, Version: version}).Request("", nil).Message
}

// speaksModern tells whether an answer to server/discover names 2026-07-28.
func speaksModern(a *gate.Answer) bool {
	var versions []string
	return !a.Error.Present() && json.Unmarshal(a.SupportedVersions.Of(a.Raw), &versions) == nil && slices.Contains(versions, mcp.Modern)
}
