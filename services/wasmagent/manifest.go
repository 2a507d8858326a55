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

// newManifest returns the manifest of a new agent. Without a manifest in the request, the agent gets rights on files and
// todos, and on the model if it has one. Each call checks the rights of the agent together with those of its chain. The
// returned [store.AgentLimits] bounds the number of agents.
func (s *Service) newManifest(ctx context.Context, who *identityv1.Principal, asked *wasmagentv1.Manifest, model string) (*wasmagentv1.Manifest, store.AgentLimits, error) {
	room := store.AgentLimits{Total: maxAgents, PerPerson: maxAgentsPerPerson, Descendants: make(map[string]int)}
	if err := checkOffered(asked); err != nil {
		return nil, room, err
	}
	behind := append([]*identityv1.Principal{who}, who.GetChain()...)
	if len(behind) > maxChain {
		return nil, room, errChainTooDeep
	}
	for above, one := range behind {
		id, ours := strings.CutPrefix(one.GetSubject(), agent.Subject(one.GetTenant(), ""))
		if !ours {
			continue
		}
		maker, err := s.agents.get(ctx, id)
		if err != nil && !errors.Is(err, store.ErrUnknown) {
			return nil, room, err
		}
		var may *wasmagentv1.ChildRight
		if maker != nil {
			may = maker.Rights().Union(time.Now()).GetChildren()
		}
		if deepest := above + 1 + int(asked.GetChildren().GetDepth()); deepest > int(may.GetDepth()) {
			return nil, room, errChildNotAllowed
		}
		room.Descendants[one.GetSubject()] = int(may.GetCount())
		// Check this before anything is compiled for the agent.
		if n, err := s.store.CountDescendants(ctx, one.GetTenant(), one.GetSubject()); err != nil || n >= int(may.GetCount()) {
			return nil, room, cmp.Or(err, errChildNotAllowed)
		}
	}
	if asked == nil {
		own := &wasmagentv1.Manifest{Files: proto.CloneOf(defaultFileRight)}
		if model != "" {
			own.Models = []*wasmagentv1.ModelRight{{Model: model}}
		}
		return own, room, nil
	}
	return proto.CloneOf(asked), room, nil
}

// checkOffered returns an error if the manifest has a right that is not supported, or too many conditions.
func checkOffered(asked *wasmagentv1.Manifest) error {
	if asked.GetClock() || asked.GetRandom() {
		return errRightsNotOffered
	}
	if countConditions(asked) > manifest.MaxConditions {
		return errTooManyConditions
	}
	return nil
}

// isInChain reports whether a subject is that of the principal, or of a principal in its chain.
func isInChain(subject string, somebody *identityv1.Principal) bool {
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
