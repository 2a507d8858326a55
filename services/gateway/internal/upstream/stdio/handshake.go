package stdio

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// initialized is the notification that a process receives after it has answered initialize.
const initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"

// maxRefusal is the maximum number of bytes of a server's refusal that an error quotes.
const maxRefusal = 512

// greeting contains the two requests that can open a session with a process. One is an initialize request. The other is
// a server/discover request, for a stateless server (revision 2026-07-28). The gateway sends first. If the process
// refuses it, the gateway sends other.
type greeting struct{ first, other *jsonrpc.Message }

// greetingOf returns the greeting for a session that is opened with hello. The greeting's first request depends on the
// revisions that the server supports. If they are not known, the first request is initialize, because most servers use
// sessions.
func greetingOf(hello *jsonrpc.Message, known *protocolFamily) greeting {
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

// handshake performs the MCP handshake with a process that was just started. If the handshake fails, handshake waits
// until the process has ended. It accepts only a small answer, because the answer is stored for as long as the process
// runs.
func (p *process) handshake(with greeting) error {
	ctx, cancel := p.starting.begin(p.server.cfg.Start)
	defer cancel()
	hello := with.first
	answer, err := p.sendGreeting(ctx, hello)
	refusals := make(map[string]*jsonrpc.Answer)
	if err == nil && refuses(hello, answer) {
		refusals[hello.Method] = answer
		if second, failed := p.sendGreeting(ctx, with.other); failed == nil && !refuses(with.other, second) {
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
		p.server.family.Store(nil)
		err = upstream.ErrNoAnswer
		refusal := upstream.Escaped(p.server.operatorScrubber.Log(string(answer.Error.Of(answer.Raw))), maxRefusal)
		p.end(&upstream.CauseError{
			Text: "it refused " + hello.Method, Detail: refusal, Err: fmt.Errorf("it refused %s: %s", hello.Method, refusal),
		})
	case hello.Method == mcp.MethodDiscover:
		p.greeting, p.hello = with, answer
		p.modern.Store(true)
		if refusal := refusals[mcp.MethodInitialize]; refusal != nil {
			p.server.family.Store(&protocolFamily{refusal: refusal})
		}
		return nil
	default:
		p.greeting, p.hello = with, answer
		p.server.family.Store(new(protocolFamily))
		if err = p.send(ctx, new(lineOrder), []byte(initialized), nil); err == nil {
			return nil
		}
		p.end(errors.New("it did not read notifications/initialized"))
	}
	<-p.done
	return fmt.Errorf("%w: %w", upstream.ClassOf(err), p.cause)
}

// refuses reports whether the answer to the handshake request hello means that the server needs the other handshake
// request. The two requests are initialize and server/discover.
func refuses(hello *jsonrpc.Message, answer *jsonrpc.Answer) bool {
	if hello.Method == mcp.MethodDiscover {
		return !upstream.SpeaksModern(answer)
	}
	return upstream.Answer{Message: answer}.IsUnknownRequest()
}

func (p *process) sendGreeting(ctx context.Context, hello *jsonrpc.Message) (*jsonrpc.Answer, error) {
	p.calls.countGreeting()
	call := p.register(hello, nil, false)
	call.lines = new(lineOrder)
	return p.do(ctx, call, nil)
}

// greetingFor returns the process's answer to its own handshake request, but with the id of hello. hello is the
// handshake request of another session.
func (p *process) greetingFor(hello *jsonrpc.Message) (*jsonrpc.Answer, error) {
	answer, err := p.hello.WithID(hello.ID.Of(hello.Raw))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, err)
	}
	return answer, nil
}

// protocolFamily records whether the server's processes use sessions or support only revision 2026-07-28. It determines
// whether the next process first receives initialize or server/discover.
type protocolFamily struct {
	// refusal is the error in response to initialize from a server that supports only revision 2026-07-28. It is nil for a
	// server that uses sessions.
	refusal *jsonrpc.Answer
}

// isModern reports whether the server is known to support only revision 2026-07-28.
func (e *protocolFamily) isModern() bool { return e != nil && e.refusal != nil }

// discover returns a server/discover request for the client that has sent hello.
func discover(hello *jsonrpc.Message) *jsonrpc.Message {
	name, version := hello.Client()
	return upstream.Discover(&upstream.Client{Name: name, Version: version}).Request("", nil).Message
}
