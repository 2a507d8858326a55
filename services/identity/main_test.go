package identity_test

import (
	"os"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
)

func TestMain(m *testing.M) { os.Exit(sqlstoretest.Main(m)) }
