"""`python -m minillm.exercises`."""

from minillm.exercises import main

raise SystemExit(main())
