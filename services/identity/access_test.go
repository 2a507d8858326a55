package identity_test

import "testing"

func TestCallers_AreEnforcedForEveryMethod(t *testing.T) {
	t.Parallel()
	s := serve(t, options{})
	s.CheckCallers(t, "sluice.identity.v1",
		"sluice.identity.v1.ConnectionService.DeleteConnection",
		"sluice.identity.v1.ConnectionService.FinishConnection",
		"sluice.identity.v1.ConnectionService.GetAccessToken",
		"sluice.identity.v1.ConnectionService.ListConnections",
		"sluice.identity.v1.ConnectionService.StartConnection",
		"sluice.identity.v1.IdentityService.AcknowledgeTokens",
		"sluice.identity.v1.IdentityService.BlockCaller",
		"sluice.identity.v1.IdentityService.CreateToken",
		"sluice.identity.v1.IdentityService.ExplainJWT",
		"sluice.identity.v1.IdentityService.ImportTokens",
		"sluice.identity.v1.IdentityService.ListBlocks",
		"sluice.identity.v1.IdentityService.ListIssuers",
		"sluice.identity.v1.IdentityService.ListTokens",
		"sluice.identity.v1.IdentityService.ReportTokenUse",
		"sluice.identity.v1.IdentityService.ReportUnknownKey",
		"sluice.identity.v1.IdentityService.RevokeToken",
		"sluice.identity.v1.IdentityService.RotateToken",
		"sluice.identity.v1.IdentityService.UnblockCaller",
		"sluice.identity.v1.IdentityService.WatchTokens",
		"sluice.identity.v1.SessionService.CreateSession",
		"sluice.identity.v1.SessionService.EndSession",
		"sluice.identity.v1.SessionService.GetCaller",
		"sluice.identity.v1.SessionService.ListSignIns",
		"sluice.identity.v1.SessionService.StartDeviceSignIn",
	)
}

func TestIdentityRole_Serves(t *testing.T) {
	t.Parallel()
	serve(t, options{}).CheckHealth(t, "identity")
}
