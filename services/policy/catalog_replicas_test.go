package policy_test

import (
	"testing"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
)

// Two replicas use one database, and do not read it regularly in this test. Both replicas receive the same list of a
// server's tools, each from its own gateway. After the second replica has accepted the list, it knows the tools that
// the first replica has stored.
func TestReportTools_ToolStoredByAnotherReplicaIsKnown(t *testing.T) {
	t.Parallel()
	opts := pinned(t)
	opts.source = sqlstoretest.Postgres(t)
	one, two := newCatalogFixture(t, opts), newCatalogFixture(t, opts)
	tool := definition("read_file", "Reads a file.")
	one.reportOwnList(tool)
	one.wantDecision(allow, commonv1.Code_CODE_UNSPECIFIED, tool)
	two.reportOwnList(tool)
	two.wantDecision(allow, commonv1.Code_CODE_UNSPECIFIED, tool)
}
