package stdio

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// initialized is what a process is told once it has answered initialize.
const initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"

// refusalKept is how much of a server's refusal an error quotes, in bytes.
const refusalKept = 512

// greeting is how a process is greeted: with the first and, where it refuses that, with the other. One is
// initialize, the other server/discover (MCP 2026-07-28), for a program that has no sessions.
type greeting struct{ first, other *gate.Message }

// greetingOf is that of a session that is being opened with hello, of a server that is known to be of an
// era, as far as it is known. Most servers have sessions, so that is asked first.
func greetingOf(hello *gate.Message, known *era) greeting {
	if hello.Method == mcp.MethodInitialize && known.isModern() {
		return greeting{discover(hello), hello}
	}
	if hello.Method == mcp.MethodInitialize {
		return greeting{hello, discover(hello)}
	}
	name, version := hello.Client()
	initialize := upstream.Initialize("", name, version).Request("", nil).Message
	if known.isModern() {
		return greeting{hello, initialize}
	}
	return greeting{initialize, hello}
}

// handshake greets a process that was just started. If it fails, the process has ended when handshake
// returns. The answer is kept for as long as the process lives, so there is no room for a large one.
func (p *process) handshake(with greeting) error {
	ctx, cancel := p.starting.begin(p.server.cfg.Start)
	defer cancel()
	hello := with.first
	answer, err := p.hail(ctx, hello)
	refusals := make(map[string]*gate.Answer)
	if err == nil && refuses(hello, answer) {
		refusals[hello.Method] = answer
		if second, failed := p.hail(ctx, with.other); failed == nil && !refuses(with.other, second) {
			hello, answer, with = with.other, second, greeting{with.other, with.first}
		}
	}
	switch {
	case errors.Is(err, upstream.ErrTimeout):
		p.end(fmt.Errorf("it did not answer %s within %s of its start (servers.%s.stdio.start)", hello.Method, p.starting.lasted(p.server.cfg.Start), p.server.cfg.Name))
	case err != nil:
		p.end(&upstream.CauseError{
			Text: "it gave no usable answer to " + hello.Method, Err: fmt.Errorf("it gave no usable answer to %s: %w", hello.Method, err),
		})
	case answer.Error.Present(), refuses(hello, answer):
		p.server.era.Store(nil)
		err = upstream.ErrNoAnswer
		refusal := upstream.Escaped(p.server.told.Log(string(answer.Error.Of(answer.Raw))), refusalKept)
		p.end(&upstream.CauseError{
			Text: "it refused " + hello.Method, Detail: refusal, Err: fmt.Errorf("it refused %s: %s", hello.Method, refusal),
		})
	case hello.Method == mcp.MethodDiscover:
		p.greeting, p.hello = with, answer
		p.modern.Store(true)
		if refusal := refusals[mcp.MethodInitialize]; refusal != nil {
			p.server.era.Store(&era{refusal: refusal})
		}
		return nil
	default:
		p.greeting, p.hello = with, answer
		p.server.era.Store(new(era))
		if err = p.send(ctx, []byte(initialized)); err == nil {
			return nil
		}
		p.end(errors.New("it did not take notifications/initialized"))
	}
	<-p.done
	return fmt.Errorf("%w: %w", upstream.ClassOf(err), p.cause)
}

// refuses reports whether an answer to a greeting says that the server is of the other era.
func refuses(hello *gate.Message, answer *gate.Answer) bool {
	if hello.Method == mcp.MethodDiscover {
		return !upstream.SpeaksModern(answer)
	}
	return upstream.Answer{Message: answer}.Refuses()
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

// era is what the server's processes were found to speak: what the next is asked first.
type era struct {
	// refusal is the answer to initialize of a server that speaks 2026-07-28 alone; nil for one that has
	// sessions.
	refusal *gate.Answer
}

// isModern reports whether the server is known to speak 2026-07-28 alone.
func (e *era) isModern() bool { return e != nil && e.refusal != nil }

// discover is the request for what a server speaks, of the client of another greeting.
func discover(hello *gate.Message) *gate.Message {
	name, version := hello.Client()
	return upstream.Discover(&upstream.Client{Name: name, Version: version}).Request("", nil).Message
}
