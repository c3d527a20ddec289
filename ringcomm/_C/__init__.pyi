from ringcomm._C import plan as plan
