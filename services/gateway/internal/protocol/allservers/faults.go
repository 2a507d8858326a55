package allservers

import (
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/aggregate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
)

func (s *Accessible) unreadableList(field string, code commonv1.Code, why string) *refusal.Refusal {
	s.part.LeftOut = nil
	s.Server.SetFaults(field, []aggregate.LeftOut{{Why: "the list can't be read: " + why}})
	return &refusal.Refusal{Code: code, Message: "its list can't be read: " + why + "."}
}
