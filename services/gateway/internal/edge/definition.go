package edge

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/canonical"
	"github.com/sluice-mesh/sluice/services/internal/turn"
)

// maxPages is how many pages of a list are read to find a tool.
const maxPages = 100

// errList means that a server's list of tools can't be read.
var errList = errors.New("the server's answer is no list of tools")

const (
	// maxLists is how many lists' digests are kept, and maxKept how many digests they
	// may have together: what a server lists is its own to choose.
	maxLists = 256
	maxKept  = 50_000
)

// definitions are the digests of definitions by the bytes of the lists that they
// came in: many sessions list the same. It is safe for concurrent use.
type definitions struct {
	*recent[[sha256.Size]byte, map[string][]byte]
}

func newDefinitions() definitions {
	return definitions{newRecent[[sha256.Size]byte](maxLists, maxKept, func(known map[string][]byte) int { return len(known) })}
}

// of returns the digests of a list, which stay as they are. The error says that ctx
// ended before they were made.
func (d definitions) of(ctx context.Context, answer *gate.Answer) (map[string][]byte, error) {
	key := canonical.Hash(answer.ToolList.Of(answer.Raw))
	if known, ok := d.get(key); ok {
		return known, nil
	}
	known, err := digests(ctx, answer)
	if err != nil {
		return nil, err
	}
	d.put(key, known)
	return known, nil
}

// digests are the digests of the definitions in a list, by the tools' names. Of a
// name that stands there twice there is none: which of the two is called is not
// known; nor of one that is too long to be called.
func digests(ctx context.Context, answer *gate.Answer) (map[string][]byte, error) {
	listed := make(map[string]int, len(answer.Tools))
	for _, t := range answer.Tools {
		listed[t.Name]++
	}
	out := make(map[string][]byte, len(answer.Tools))
	var stint turn.Stint
	for _, t := range answer.Tools {
		stint.Part()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("read the definitions of a list: %w", ctx.Err())
		}
		if len(t.Name) > maxToolName || listed[t.Name] > 1 {
			continue
		}
		if digest := digestOf(answer, t); digest != nil {
			out[t.Name] = digest
		}
	}
	return out, nil
}

// digestOf is the digest of a tool's definition; nil where that has no canonical form.
func digestOf(answer *gate.Answer, t gate.Tool) []byte {
	text, err := canonical.Object(string(t.Definition.Of(answer.Raw)))
	if err != nil {
		return nil
	}
	sum := canonical.Hash([]byte(text))
	return sum[:]
}

// called is the digest of the called tool's definition in a list. Of a name that stands
// there twice it is one of all its definitions: which of them is called is not known, so
// none may change.
func (x *exchange) called(ctx context.Context, answer *gate.Answer) ([]byte, error) {
	var found []gate.Tool
	for _, t := range answer.Tools {
		if t.Name == x.msg.Name {
			found = append(found, t)
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
	done, err := x.has.Answer.Turn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if len(found) == 1 {
		return digestOf(answer, found[0]), nil
	}
	all := sha256.New()
	var stint turn.Stint
	for _, t := range found {
		stint.Part()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("read the definitions of a tool: %w", ctx.Err())
		}
		_, _ = all.Write(digestOf(answer, t)) // a hash takes everything
	}
	return all.Sum(nil), nil
}

// Definition is the digest of the called tool's definition: as this session has
// listed it or, where it has not or now is set, as the server lists it now.
func (x *exchange) Definition(ctx context.Context, now bool) ([]byte, error) {
	if digest := x.sess.Definitions.Of(x.msg.Name); digest != nil && !now {
		return digest, nil
	}
	ctx, cancel := context.WithTimeout(ctx, x.target.Timeout)
	defer cancel()
	has := x.has.Answer.Beside()
	defer has.Close()
	var cursor string
	for range maxPages {
		has.Keep(0) // what a page says is taken from it before the next one is read
		answer, err := x.page(ctx, cursor, has)
		if err != nil {
			return nil, err
		}
		digest, err := x.called(ctx, answer)
		if err != nil {
			return nil, err
		}
		if digest != nil {
			x.deps.Sessions.Learn(x.sess, map[string][]byte{x.msg.Name: digest}) // the next question is about this one
			return digest, nil
		}
		if cursor = unquote(answer.NextCursor.Of(answer.Raw)); cursor == "" {
			return nil, nil
		}
	}
	return nil, fmt.Errorf("%w: it has more than %d pages", errList, maxPages)
}

// page asks the server for one page of its list, for the gateway itself.
func (x *exchange) page(ctx context.Context, cursor string, has *room.Holding) (*gate.Answer, error) {
	answer, err := x.sess.Upstream.Ask(ctx, upstream.ListTools(cursor), has, func([]byte) {})
	if err != nil {
		return nil, err
	}
	if !answer.Message.ToolList.Present() {
		return nil, errList
	}
	return answer.Message, nil
}
