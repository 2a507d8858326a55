package wasmagent

import (
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/agent"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/files"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/rights"
)

// maxChain is how many may stand behind an agent: policy judges all of them.
const maxChain = 4

// granted is the manifest that a new agent gets: its own files and todos where nothing is
// said. What it names beside is judged at each call, with those who stand behind the agent.
func (s *Service) granted(who *identityv1.Principal, asked *wasmagentv1.Manifest) (*wasmagentv1.Manifest, error) {
	if len(asked.GetModels()) > 0 || asked.GetClock() || asked.GetRandom() {
		return nil, errRights
	}
	conditions := 0
	for _, right := range asked.GetTools() {
		conditions += len(right.GetConditions())
	}
	if conditions > rights.MaxConditions {
		return nil, errConditions
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.mayMake(who, asked); err != nil { // before anything is compiled for it
		return nil, err
	}
	if asked == nil {
		return &wasmagentv1.Manifest{Files: &wasmagentv1.FileRight{Bytes: int32(defaultFiles.Bytes), Count: int32(defaultFiles.Count)}}, nil
	}
	return proto.CloneOf(asked), nil
}

// mayMake tells whether somebody may make an agent: an agent as its manifest says, and those
// of the agents behind it. It needs the lock, as does below.
func (s *Service) mayMake(who *identityv1.Principal, asked *wasmagentv1.Manifest) error {
	behind := append([]*identityv1.Principal{who}, who.GetChain()...)
	if len(behind) > maxChain {
		return errChain
	}
	for above, one := range behind {
		id, ours := strings.CutPrefix(one.GetSubject(), agent.Subject(one.GetTenant(), ""))
		if !ours {
			continue
		}
		maker := s.agents[id]
		var may *wasmagentv1.ChildRight
		if maker != nil {
			may = maker.Rights.Manifest().GetChildren()
		}
		if deepest := above + 1 + int(asked.GetChildren().GetDepth()); deepest > int(may.GetDepth()) || s.below(one.GetSubject()) >= int(may.GetCount()) {
			return errChildren
		}
	}
	return nil
}

// below is how many agents stand below one, at any depth.
func (s *Service) below(subject string) (n int) {
	now := time.Now()
	for _, a := range s.agents {
		if !a.Gone(now) && isBehind(subject, a.Creator) { // what has ended can be brought back
			n++
		}
	}
	return n
}

// isBehind tells whether a subject is somebody, or stands behind them.
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

// roomOf is what files a manifest lets an agent have.
func roomOf(m *wasmagentv1.Manifest) files.Bounds {
	return files.Bounds{Bytes: min(defaultFiles.Bytes, int(m.GetFiles().GetBytes())), Count: min(defaultFiles.Count, int(m.GetFiles().GetCount()))}
}
