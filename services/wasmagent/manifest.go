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

// maxChain limits how many principals, including the creator, the delegation chain of a new agent has. The limit is
// necessary because for each call, the policy service checks every principal in the chain.
const maxChain = 4

// newManifest returns the manifest of a new agent. If the request contains none, the agent gets rights to files and
// todos, and to its model if it has one. The manifest may contain more rights than the creator has, because each call
// must be allowed by the rights of the agent and by the rights of every agent in its delegation chain. The returned
// [store.AgentLimits] limits how many agents may exist.
func (s *Service) newManifest(ctx context.Context, caller *identityv1.Principal, requested *wasmagentv1.Manifest, model string) (*wasmagentv1.Manifest, store.AgentLimits, error) {
	limits := store.AgentLimits{Total: maxAgents, PerPerson: maxAgentsPerPerson, Descendants: make(map[string]int)}
	if err := checkOffered(requested); err != nil {
		return nil, limits, err
	}
	lineage := append([]*identityv1.Principal{caller}, caller.GetChain()...)
	if len(lineage) > maxChain {
		return nil, limits, errChainTooDeep
	}
	for above, member := range lineage {
		id, isAgent := strings.CutPrefix(member.GetSubject(), agent.Subject(member.GetTenant(), ""))
		if !isAgent {
			continue
		}
		maker, err := s.agents.get(ctx, id)
		if err != nil && !errors.Is(err, store.ErrUnknown) {
			return nil, limits, err
		}
		var childRight *wasmagentv1.ChildRight
		if maker != nil {
			childRight = maker.Rights().Union(time.Now()).GetChildren()
		}
		if deepest := above + 1 + int(requested.GetChildren().GetDepth()); deepest > int(childRight.GetDepth()) {
			return nil, limits, errChildNotAllowed
		}
		limits.Descendants[member.GetSubject()] = int(childRight.GetCount())
		// The limit for descendants is checked before the module is compiled.
		if n, err := s.store.CountDescendants(ctx, member.GetTenant(), member.GetSubject()); err != nil || n >= int(childRight.GetCount()) {
			return nil, limits, cmp.Or(err, errChildNotAllowed)
		}
	}
	if requested == nil {
		own := &wasmagentv1.Manifest{Files: proto.CloneOf(defaultFileRight)}
		if model != "" {
			own.Models = []*wasmagentv1.ModelRight{{Model: model}}
		}
		return own, limits, nil
	}
	return proto.CloneOf(requested), limits, nil
}

// checkOffered returns an error if the manifest contains an unsupported right or too many conditions.
func checkOffered(requested *wasmagentv1.Manifest) error {
	if requested.GetClock() || requested.GetRandom() {
		return errRightsNotOffered
	}
	if countConditions(requested) > manifest.MaxConditions {
		return errTooManyConditions
	}
	return nil
}

func isInChain(subject string, caller *identityv1.Principal) bool {
	if caller.GetSubject() == subject {
		return true
	}
	for _, member := range caller.GetChain() {
		if member.GetSubject() == subject {
			return true
		}
	}
	return false
}
