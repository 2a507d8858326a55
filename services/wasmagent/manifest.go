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
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/rights"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
)

// maxChain is how many may stand behind an agent: policy judges all of them.
const maxChain = 4

// granted is the manifest that a new agent gets: its own files and todos where nothing is
// said, and its model, which may be empty. What it names beside is judged at each call, with those who stand behind the agent.
// The room is how many agents there may be.
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
		// before anything is compiled for it
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

// offered reports whether rights can be given.
func offered(asked *wasmagentv1.Manifest) error {
	if asked.GetClock() || asked.GetRandom() {
		return errRights
	}
	if conditions(asked) > rights.MaxConditions {
		return errConditions
	}
	return nil
}

// isBehind reports whether a subject is somebody, or stands behind them.
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
