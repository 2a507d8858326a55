package cli

import "testing"

func TestJournalRoom_SaysHowLongCallsAreStored(t *testing.T) {
	t.Parallel()
	for want, room := range map[string]journalRoom{
		"0 of 1024 MiB for calls; too few calls to estimate for how many days this is enough":                                            {Bytes: 1 << 30},
		"1023 of 1024 MiB for calls; at the current rate this is enough for 2.7 of 90 days: set journal.calls_mib to 34134 for all days": {Bytes: 1 << 30, Used: 1<<30 - 1, LastsDays: 2.7},
		"100 of 1024 MiB for calls; enough for 90 days":                                                                                  {Bytes: 1 << 30, Used: 100 << 20, LastsDays: 400},
	} {
		if got := room.String(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
