package cli

import "testing"

func TestJournalRoom_SaysForHowLongCallsAreKept(t *testing.T) {
	t.Parallel()
	for want, room := range map[string]journalRoom{
		"0 of 1024 MiB for calls; too few to tell for how many days that is enough":                                            {Bytes: 1 << 30},
		"1023 of 1024 MiB for calls; at the present rate calls are kept for 2.7 of 90 days: all take journal.calls_mib: 34134": {Bytes: 1 << 30, Used: 1<<30 - 1, LastsDays: 2.7},
		"100 of 1024 MiB for calls; enough for 90 days":                                                                        {Bytes: 1 << 30, Used: 100 << 20, LastsDays: 400},
	} {
		if got := room.String(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
