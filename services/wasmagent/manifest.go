package wasmagent

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/agent"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/manifest"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
)

// maxChain bounds the number of principals in the chain of a new agent, including its creator. Policy checks each of
// them at each call.
const maxChain = 4

// granted returns the manifest of a new agent. Without a manifest in the request, the agent gets rights on files and
// todos, and on the model if it has one. Each call checks the rights of the agent together with those of its chain. The
// returned [store.Room] bounds the number of agents.
func (s *Service) granted(ctx context.Context, who *identityv1.Principal, asked *wasmagentv1.Manifest, model string) (*wasmagentv1.Manifest, store.Room, error) {
	room := store.Room{All: maxAgents, Own: maxOwn, Below: make(map[string]int)}
	if err := offered(asked); err != nil {
		return nil, room, err
	}
	behind := append([]*identityv1.Principal{who}, who.GetChain()...)
	if len(behind) > maxChain {
		return nil, room, errChain
	}
	for above, one := range behind {
		id, ours := strings.CutPrefix(one.GetSubject(), agent.Subject(one.GetTenant(), ""))
		if !ours {
			continue
		}
		maker, err := s.shelf.get(ctx, id)
		if err != nil && !errors.Is(err, store.ErrUnknown) {
			return nil, room, err
		}
		var may *wasmagentv1.ChildRight
		if maker != nil {
			may = maker.Rights().Manifest(time.Now()).GetChildren()
		}
		if deepest := above + 1 + int(asked.GetChildren().GetDepth()); deepest > int(may.GetDepth()) {
			return nil, room, errChildren
		}
		room.Below[one.GetSubject()] = int(may.GetCount())
		// Check this before anything is compiled for the agent.
		if n, err := s.store.Below(ctx, one.GetTenant(), one.GetSubject()); err != nil || n >= int(may.GetCount()) {
			return nil, room, cmp.Or(err, errChildren)
		}
	}
	if asked == nil {
		own := &wasmagentv1.Manifest{Files: proto.CloneOf(defaultRoom)}
		if model != "" {
			own.Models = []*wasmagentv1.ModelRight{{Model: model}}
		}
		return own, room, nil
	}
	return proto.CloneOf(asked), room, nil
}

// offered returns an error if the manifest has a right that is not supported, or too many conditions.
func offered(asked *wasmagentv1.Manifest) error {
	if asked.GetClock() || asked.GetRandom() {
		return errRights
	}
	if conditions(asked) > manifest.MaxConditions {
		return errConditions
	}
	return nil
}

// isBehind reports whether a subject is that of the principal, or of a principal in its chain.
func isBehind(subject string, somebody *identityv1.Principal) bool {
	if somebody.GetSubject() == subject {
		return true
	}
	for _, one := range somebody.GetChain() {
		if one.GetSubject() == subject {
			return true
		}
	}
	return false
}
