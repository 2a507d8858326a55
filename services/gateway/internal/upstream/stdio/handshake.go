package stdio

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// initialized is what a process is told once it has answered initialize.
const initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"

// refusalKept is how much of a server's refusal an error quotes, in bytes.
const refusalKept = 512

// handshake initializes a process that was just started. If it fails, the
// process has ended when handshake returns. Its answer is kept for as long as the
// process lives, so there is no room for a large one.
func (p *process) handshake(initialize *gate.Message) error {
	limit := p.server.cfg.HandshakeTimeout
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	hello, err := p.do(ctx, p.register(initialize, nil, false), nil)
	switch {
	case errors.Is(err, upstream.ErrTimeout):
		p.end(fmt.Errorf("it did not answer initialize within %s", limit))
	case err != nil:
		p.end(fmt.Errorf("it gave no usable answer to initialize: %w", err))
	case hello.Error.Present():
		err = upstream.ErrNoAnswer
		refusal := p.server.clean.Log(string(hello.Error.Of(hello.Raw)))
		p.end(fmt.Errorf("it refused initialize: %s", printable(refusal, refusalKept)))
	default:
		p.hello = hello
		if err = p.send(ctx, []byte(initialized)); err == nil {
			return nil
		}
		p.end(errors.New("it did not take notifications/initialized"))
	}
	<-p.done
	return fmt.Errorf("%w: %w", upstream.ClassOf(err), p.cause)
}

// greet returns the answer to initialize for one more session.
func (p *process) greet(initialize *gate.Message) (*gate.Answer, error) {
	answer, err := p.hello.Addressed(initialize.ID.Of(initialize.Raw))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, err)
	}
	return answer, nil
}
