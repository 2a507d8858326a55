package edge

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/catalogue"
	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

const (
	// maxPages is how many pages of a list are read to find a tool.
	maxPages = 100
	// looksAfter is how old what a session has listed to find a tool may be before it
	// lists again for one that is not there.
	looksAfter = 30 * time.Second
	// anyAge is as old as a list may be.
	anyAge = math.MaxInt64
)

// errList means that a server's list of tools can't be read.
var errList = errors.New("the server's answer is no list of tools")

// known is what the catalogue knows of a page that the session got, as of at most age ago.
func (x *exchange) known(ctx context.Context, answer *gate.Answer, age time.Duration) (*catalogue.Known, error) {
	version := x.sess.Version
	if found := x.target.found.Last(); found != nil && x.protocol.crosses() {
		version = found.Version // in which it lists, whatever its client speaks
	}
	return x.deps.Catalogue.Of(ctx, catalogue.List{Server: x.server, Version: version, To: x.Principal}, answer, age)
}

// discovered is what the gateway has listed itself; nil where it could not. It waits for
// that only where nothing is known yet.
func discovered(ctx context.Context, of *discovery.Server) *discovery.Found {
	if found := of.Last(); found != nil {
		of.Renew(discovery.Fresh)
		return found
	}
	found, err := of.Found(ctx, discovery.Fresh)
	if err != nil {
		return nil
	}
	return found
}

// Known is the digest of the called tool's definition: as this session has listed it or,
// where it has not, as the gateway has; nil where neither has.
func (x *exchange) Known(ctx context.Context) []byte {
	if digest := x.addressing.shown(x.msg.Name); digest != nil {
		return digest
	}
	if found := discovered(ctx, x.ownList); found != nil {
		return found.Known.Digests[x.msg.Name]
	}
	return nil
}

// Definition is the digest of the called tool's definition: as it is known or, where it is
// not or now is set, as the server lists it to this session now. It is nil where the server
// lists no such tool, and where no tool is called.
func (x *exchange) Definition(ctx context.Context, now bool) ([]byte, error) {
	if x.msg.Method != mcp.MethodToolsCall {
		return nil, nil
	}
	if !now {
		if digest := x.Known(ctx); digest != nil {
			return digest, nil
		}
		if err := x.ownList.Untold(); err != nil { // or else the definition would seem to be new
			return nil, err
		}
		if time.Since(time.Unix(0, x.sess.Looked.Load())) < looksAfter {
			return nil, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, x.target.Timeout)
	defer cancel()
	has := x.has.Answer.Beside()
	defer has.Close()
	var cursor string
	given := make(map[string]bool)
	for range maxPages {
		if given[cursor] {
			return nil, fmt.Errorf("%w: a page has a cursor that was given before", errList)
		}
		given[cursor] = true
		has.Keep(0) // what a page says is taken from it before the next one is read
		answer, err := x.page(ctx, cursor, has)
		if err != nil {
			return nil, err
		}
		known, err := x.known(ctx, answer, anyAge)
		if err != nil {
			return nil, err
		}
		if known.Refused {
			return nil, catalogue.ErrRefused
		}
		if digest := known.Digests[x.msg.Name]; digest != nil {
			if x.ownList.Last() == nil { // a definition is accepted at first use only when the gateway has seen the whole list
				x.ownList.Insist(ctx)
			}
			x.deps.Sessions.Learn(x.sess, map[string][]byte{x.msg.Name: digest}) // of the others some may be hidden
			return digest, nil
		}
		if cursor = unquote(answer.NextCursor.Of(answer.Raw)); cursor == "" {
			x.sess.Looked.Store(time.Now().UnixNano())
			return nil, nil
		}
	}
	return nil, fmt.Errorf("%w: it has more than %d pages", errList, maxPages)
}

// page asks the server for one page of its list, for the gateway itself.
func (x *exchange) page(ctx context.Context, cursor string, has *room.Holding) (*gate.Answer, error) {
	answer, err := x.sess.Upstream.Ask(ctx, upstream.ListTools(cursor, x.speaksFor), has, nil)
	if err != nil {
		return nil, err
	}
	if !answer.Message.ToolList.Present() {
		return nil, errList
	}
	return answer.Message, nil
}
